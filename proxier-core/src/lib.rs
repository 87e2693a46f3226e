//! Kubernetes Services in, IPVS virtual servers out, at the cost of the change
