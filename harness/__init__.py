"""Old against new: what changes when a training stack moves a pin."""
