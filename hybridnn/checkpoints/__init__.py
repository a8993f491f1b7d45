"""Checkpoints: folders of plain ``.npy`` files of global arrays, written and read by the ranks of any grid."""
