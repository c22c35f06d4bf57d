"""Rehearsal: what can be found out about a run on a machine without its NPUs.

`imports` imports every module of the patched packages; `layout` forms the recipe's process groups at their real
sizes and builds a tiny model over them. Both work in the training interpreter, in children of their own
(`standins/injected/npu_rl_rehearsal`), and write nothing into the workspace.
"""
