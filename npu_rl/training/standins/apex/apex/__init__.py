"""Stand-in for apex as MindSpeed-LLM 2.0.0 imports it: two names of optimizers, neither of which is made."""
