"""Every Triton kernel follows its reference, several files per process: starting one takes as long as many tests.

They run in separate processes because Triton decides at import whether to interpret. Files are named as in
`longspan/kernels`.
"""

from pathlib import Path

import pytest

from tests.kernels.in_a_process import assert_passes, needs_triton

# The runtime checks of shapes in signatures cannot be compiled, so tests of compiled callers run without them.
COMPILED = ("-k", "compiled", "--noconftest")
ALSO_COMPILED = [  # separately, in `make test-full`
    ("linear_attention_kernel.py", "landmark_kernel.py", "bounded_memory_kernel.py", "one_memory_kernel.py"),
    (
        "block_sparse_kernel.py",
        "labels_kernel.py",
        "favor_kernel.py",
        "beside_window_kernel.py",
        "lsh_attention_kernel.py",
    ),
]
UNCOMPILED = (
    "state_space_kernel.py",
    "diagonals_kernel.py",
    "sampled_qk_kernel.py",
    "pseudo_inverse_kernel.py",
    "interpreter_kernel.py",
)
COMPILED_ON_A_GPU = (  # so that tests on a GPU run without the shape checks
    "paired_kernel.py",
    "extra_keys_kernel.py",
    "point_cloud_kernel.py",
    "running_topk_kernel.py",
    "feature_map_kernel.py",
    "running_covariance_kernel.py",
    "bucket_sums_kernel.py",
    "lstm_kernel.py",
    "row_kernels.py",
)
LONG = ("-k", "not compiled", "-m", "full")
FULL = [file for files in ALSO_COMPILED for file in files]
WITH_LONG = [file for file in FULL if "mark.full" in Path(__file__).with_name(file).read_text()]

pytestmark = needs_triton


@pytest.mark.parametrize(
    "files, how",
    [
        *((files, ("-k", "not compiled")) for files in ALSO_COMPILED),
        (UNCOMPILED, ()),
        (COMPILED_ON_A_GPU, ("--noconftest",)),
    ],
    ids=lambda value: ", ".join(value).replace("_kernel.py", ""),
)
def test_the_kernels_follow_their_references(files, how):
    assert_passes(*files, *how, "-m", "not full")


@pytest.mark.full
@pytest.mark.parametrize(
    "file, how",
    [*((file, COMPILED) for file in FULL), *((file, LONG) for file in WITH_LONG)],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_the_kernels_follow_their_references_at_length(file, how):
    assert_passes(file, *how)


@pytest.mark.full
@pytest.mark.parametrize(
    "file, how",
    [
        ("state_space_kernel.py", ()),
        ("paired_kernel.py", ("--noconftest",)),
        ("lstm_kernel.py", ("--noconftest",)),
        ("running_covariance_kernel.py", ("--noconftest",)),
    ],
)
def test_kernels_that_compile_elsewhere_follow_their_references_at_length(file, how):
    assert_passes(file, *how, "-m", "full")


def test_no_file_of_kernels_is_left_out():
    files = {path.name for path in Path(__file__).parent.glob("*kernel*.py") if not path.name.startswith("test_")}
    assert files == {*FULL, *UNCOMPILED, *COMPILED_ON_A_GPU, "sdpa_kernel.py"}  # the last one is for GPUs only
