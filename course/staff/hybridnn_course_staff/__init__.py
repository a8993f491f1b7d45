"""The class kit of the staff: assignments with their solutions, grading, and what a term needs."""
