"""What ends a job that fails or stands still: fail-safe, stall watch, lost ranks."""
