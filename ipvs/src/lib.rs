//! Program the Linux IP Virtual Server (IPVS) over netlink: virtual servers, real servers, batches, snapshots
