"""The rehearsal's children in the training interpreter: `PYTHON .../npu_rl_rehearsal LEVEL JOB RESULT`.

They use the standard library, torch and the workspace's tree only. JOB is a JSON file. RESULT gets one JSON object per
line as they are found, so that a child that dies leaves what it has found.
"""
