"""Stand-in for apex as MindSpeed-LLM 2.0.0 imports it: two optimizer names that do not work."""
