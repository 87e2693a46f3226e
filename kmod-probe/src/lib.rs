//! What this kernel can do for IPVS, ipset and iptables, and how we know
