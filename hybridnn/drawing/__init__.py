"""Everything that draws: schedules, runs, learning curves, cost models, as text, SVG, PNG, PDF and pages."""
