"""What a step of a layout costs on a machine."""
