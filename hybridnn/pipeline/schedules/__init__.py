"""Schedules as data: instructions, orders, weight policies, methods, messages, clock, memory."""
