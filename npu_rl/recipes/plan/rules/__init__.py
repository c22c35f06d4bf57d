"""Rules on a recipe's sizes and settings, and the upstream code behind each rule."""
