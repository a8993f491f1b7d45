"""Cost models: what collectives, training steps and layouts cost, and on which machine."""
