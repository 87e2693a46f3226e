//! Real kernels for tests: network namespaces, a virtual machine, and the field's own tools as oracles
