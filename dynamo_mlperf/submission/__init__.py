"""From recorded runs to the tree of a submission, and the gate that such a tree has to pass."""
