"""Replicas of a stage over its batch group: private, shared by the ranks of a node, or with a fused update."""
