"""The names that a user may choose from, as plain data: `--help` lists them without loading what they stand for.

Each registry says what its names mean; a test keeps both the same.
"""

ATTACKS = (
    "noise",
    "fgsm",
    "bim",
    "pgd",
    "pgd-eot",
    "mma",
    "cw",
    "apgd-ce",
    "apgd-dlr",
    "apgd-t",
    "fab-t",
    "square",
    "autoattack",
    "autoattack-rand",
    "bpda-eot",
    "paper",
    "authors",
    "route",
    "evade",
    "gate",
    "greedy",
    "match",
    "unblamed",
    "alarm",
)
CLASSIFIERS = ("cnn", "resnet18", "resnet18-silu", "resnet18-thin", "resnet50", "swin-t")  # and wrn-DEPTH-WIDTH
PRESETS = ("cifar10", "digits", "small", "paper", "paper-imagenet", "authors")
PROTOCOLS = ("quick", "paper", "strong")
SOURCES = ("digits", "cifar10", "cifar10-small")
TABLES = (
    "table1-linf",
    "table1-l2",
    "imagenet",
    "transfer",
    "batch-size",
    "mixed",
    "bpda",
    "threshold",
    "alpha",
    "noise",
    "two-pronged",
    "compute",
    "with-at",
)
