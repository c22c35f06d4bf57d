import pytest

pytest.register_assert_rewrite("tests.faults.stage")  # its checks are to say what they found
