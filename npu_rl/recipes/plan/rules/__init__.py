"""Rules on a recipe's sizes and settings, each with the upstream code behind it."""
