"""How fast training and prediction are here, against a plain loop and against the device."""
