"""A8, strong scaling: a study, its batch script, its data and what they show."""
