"""Array arithmetic of one device: everything that touches numbers, and nothing that knows a layer or a rank."""
