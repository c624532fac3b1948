"""The pages of the service: each one file, which loads nothing from elsewhere."""

from importlib import resources

from starlette.responses import HTMLResponse

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def page(name: str) -> HTMLResponse:
    """A page by its name. It may run its own script and talk to its own origin, nothing else."""
    text = (resources.files(__package__) / f"{name}.html").read_text(encoding="utf-8")
    return HTMLResponse(text, headers=HEADERS)
