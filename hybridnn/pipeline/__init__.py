"""Pipeline parallelism: schedules, their checks and drawings, stage partition, execution."""
