"""The operator of the paper: sort the patches of feature maps by energy.

`functional` has the public functions, `options` makes arguments from dataclasses that check themselves, `dispatch`
chooses between the two forms and defines derivatives, `torch_form` is the definition in plain torch, `native` the
compiled kernel with the same results bit for bit. This room imports no other.
"""
