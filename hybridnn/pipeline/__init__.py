"""Layer pipelines: schedules as data, checked, drawn, simulated and executed."""
