"""What a rehearsal runs in the training interpreter: `PYTHON .../npu_rl_rehearsal LEVEL JOB RESULT`.

Standard library, torch and the workspace's tree only. JOB is a JSON file; RESULT gets one JSON object a line, as
the work goes on, so that a child that dies leaves what it had found.
"""
