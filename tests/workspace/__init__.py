import pytest

pytest.register_assert_rewrite("tests.workspace.stack")  # its checks are to say what they found
