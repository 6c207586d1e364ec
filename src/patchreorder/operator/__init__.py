"""The operator: sort the patches of feature maps by energy, in plain torch and as a native kernel."""
