"""The OpenAPI document is true: requests made from it by schemathesis never break the service, and answers are as it says.

TWOPRONG_SCALE=34 sends more than 2,000 of them.
"""

import json
import sys
import urllib.request
from collections import Counter
from contextlib import suppress
from itertools import product
from pathlib import Path

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

sys.path.insert(0, str(Path(__file__).parent))
from serve_load import SCALE

OPERATIONS = 10
CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]


def test_requests_made_from_the_document_are_answered_as_it_says(echoing):
    counts = Counter()
    with echoing() as ((host, port), service):
        address = f"http://{host}:{port}"
        with urllib.request.urlopen(f"{address}/openapi.json") as response:
            schema = schemathesis.openapi.from_dict(json.load(response))
        operations = [found.ok() for found in schema.get_all_operations()]
        assert len(operations) == OPERATIONS
        for operation, mode in product(operations, GenerationMode):

            @settings(max_examples=6 * SCALE, database=None, derandomize=True, deadline=None, phases=[Phase.generate],
                      suppress_health_check=list(HealthCheck))  # fmt: skip
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case):
                if "name" in case.path_parameters and len(str(case.path_parameters["name"])) % 2:
                    case.path_parameters["name"] = "echo"
                response = case.call_and_validate(base_url=address, checks=CHECKS)
                counts[response.status_code] += 1

            with suppress(Unsatisfiable):  # nothing can be wrong about a GET without parameters
                ask()
        assert service.batcher.pending == 0
        with urllib.request.urlopen(f"{address}/v2/health/ready") as response:
            assert response.status == 200
    print(counts.total(), dict(counts))
    assert counts.total() >= 60 * SCALE
