"""The descriptors in the forms that other libraries and programs expect: one module for each of them."""
