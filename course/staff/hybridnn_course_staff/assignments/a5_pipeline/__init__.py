"""A5, pipeline orders: what each stage computes when, how long that takes and what it stores."""
