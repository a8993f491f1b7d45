"""What processes of submissions load: calls of the students' functions, and trainings with them; no solutions."""
