"""What finished runs tell: their figures, what limits each of them, and how they scale."""
