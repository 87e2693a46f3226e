/*
 * The bar for a full check: the dumps that it takes, asked for and thrown away. One of the virtual servers, one of the real
 * servers of each, one of each set named on the command line (a set that does not exist counts as read), one of the devices and
 * one of the addresses. Of the answers it reads message headers, and of virtual servers the key, without which it could not ask
 * for real servers.
 *
 * Real servers are asked for on a socket of their own that is only ever read with a small buffer: for each datagram of a dump the
 * kernel allocates, and with init_on_alloc clears, as much as the largest buffer offered (net/netlink/af_netlink.c, netlink_dump).
 *
 * Makes two passes and prints the nanoseconds of the second: "ipvs N", "sets N", "addresses N", and "entries N", the messages of
 * virtual and real servers. The sockets are opened before the clock starts, as those of a long-running proxy are.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/genetlink.h>
#include <linux/ip_vs.h>
#include <linux/netfilter/ipset/ip_set.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct key {
	uint16_t af, protocol, port;
	unsigned char addr[16];
};

#define LARGE 65536
#define SMALL 7680

static char in[LARGE], out[4096];
static struct key *keys;
static size_t used, known, room;
static uint32_t sequence;
static long messages;
static uint16_t family;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static int open_netlink(int protocol)
{
	struct sockaddr_nl sa = { .nl_family = AF_NETLINK };
	int size = 1 << 20, fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
	if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa)))
		fail("socket");
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));
	return fd;
}

static struct nlattr *attr(uint16_t type, const void *data, uint16_t length)
{
	struct nlattr *a = (struct nlattr *)(out + used);
	a->nla_type = type;
	a->nla_len = NLA_HDRLEN + length;
	memcpy(out + used + NLA_HDRLEN, data, length);
	memset(out + used + a->nla_len, 0, NLA_ALIGN(a->nla_len) - a->nla_len);
	used += NLA_ALIGN(a->nla_len);
	return a;
}

static void begin(uint16_t type, uint16_t flags, const void *header, size_t length)
{
	struct nlmsghdr *h = (struct nlmsghdr *)out;
	memset(out, 0, NLMSG_HDRLEN + NLMSG_ALIGN(length));
	h->nlmsg_type = type;
	h->nlmsg_flags = NLM_F_REQUEST | flags;
	h->nlmsg_seq = ++sequence;
	memcpy(out + NLMSG_HDRLEN, header, length);
	used = NLMSG_HDRLEN + NLMSG_ALIGN(length);
}

static void take_key(struct nlmsghdr *h)
{
	struct nlattr *top = (struct nlattr *)((char *)NLMSG_DATA(h) + GENL_HDRLEN);
	char *p = (char *)top + NLA_HDRLEN, *stop = (char *)top + top->nla_len;
	struct key key = { 0 };
	while (p + NLA_HDRLEN <= stop) {
		struct nlattr *a = (struct nlattr *)p;
		void *data = p + NLA_HDRLEN;
		switch (a->nla_type & NLA_TYPE_MASK) {
		case IPVS_SVC_ATTR_AF: memcpy(&key.af, data, 2); break;
		case IPVS_SVC_ATTR_PROTOCOL: memcpy(&key.protocol, data, 2); break;
		case IPVS_SVC_ATTR_PORT: memcpy(&key.port, data, 2); break;
		case IPVS_SVC_ATTR_ADDR: memcpy(key.addr, data, 16); break;
		}
		p += NLA_ALIGN(a->nla_len);
	}
	if (known == room) {
		room = room ? 2 * room : 1024;
		keys = realloc(keys, room * sizeof(*keys));
		if (!keys)
			fail("realloc");
	}
	keys[known++] = key;
}

/* Sends what is in `out` and reads to the end of the answer. */
static void dump(int fd, size_t size, int with_keys)
{
	((struct nlmsghdr *)out)->nlmsg_len = used;
	if (send(fd, out, used, 0) != (ssize_t)used)
		fail("send");
	for (;;) {
		ssize_t n = recv(fd, in, size, MSG_TRUNC);
		if (n < 0 || n > (ssize_t)size)
			fail("recv");
		for (struct nlmsghdr *h = (struct nlmsghdr *)in; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
			if (h->nlmsg_type == NLMSG_DONE)
				return;
			if (h->nlmsg_type == NLMSG_ERROR) {
				int error = -((struct nlmsgerr *)NLMSG_DATA(h))->error;
				if (!error || error == ENOENT)
					return;
				errno = error;
				fail("kernel");
			}
			messages++;
			if (with_keys)
				take_key(h);
		}
	}
}

static void lookup(int fd)
{
	struct genlmsghdr g = { .cmd = CTRL_CMD_GETFAMILY, .version = 2 };
	begin(GENL_ID_CTRL, 0, &g, sizeof(g));
	attr(CTRL_ATTR_FAMILY_NAME, IPVS_GENL_NAME, sizeof(IPVS_GENL_NAME));
	((struct nlmsghdr *)out)->nlmsg_len = used;
	if (send(fd, out, used, 0) != (ssize_t)used)
		fail("send");
	ssize_t n = recv(fd, in, sizeof(in), 0);
	struct nlmsghdr *h = (struct nlmsghdr *)in;
	if (n < 0 || h->nlmsg_type == NLMSG_ERROR)
		fail("IPVS family");
	char *p = in + NLMSG_HDRLEN + GENL_HDRLEN, *stop = in + h->nlmsg_len;
	while (p + NLA_HDRLEN <= stop) {
		struct nlattr *a = (struct nlattr *)p;
		if (a->nla_type == CTRL_ATTR_FAMILY_ID)
			memcpy(&family, p + NLA_HDRLEN, 2);
		p += NLA_ALIGN(a->nla_len);
	}
}

static void ipvs(int fd, int fd_small)
{
	struct genlmsghdr g = { .cmd = IPVS_CMD_GET_SERVICE, .version = IPVS_GENL_VERSION };
	known = 0;
	begin(family, NLM_F_DUMP, &g, sizeof(g));
	dump(fd, LARGE, 1);
	g.cmd = IPVS_CMD_GET_DEST;
	for (size_t i = 0; i < known; i++) {
		begin(family, NLM_F_DUMP, &g, sizeof(g));
		size_t at = used;
		attr(IPVS_CMD_ATTR_SERVICE | NLA_F_NESTED, "", 0);
		attr(IPVS_SVC_ATTR_AF, &keys[i].af, 2);
		attr(IPVS_SVC_ATTR_PROTOCOL, &keys[i].protocol, 2);
		attr(IPVS_SVC_ATTR_ADDR, keys[i].addr, 16);
		attr(IPVS_SVC_ATTR_PORT, &keys[i].port, 2);
		((struct nlattr *)(out + at))->nla_len = used - at;
		dump(fd_small, SMALL, 0);
	}
}

static void set(int fd, const char *name)
{
	struct nfgenmsg n = { .nfgen_family = AF_INET, .version = NFNETLINK_V0 };
	unsigned char protocol = 6;
	begin(NFNL_SUBSYS_IPSET << 8 | IPSET_CMD_LIST, NLM_F_DUMP, &n, sizeof(n));
	attr(IPSET_ATTR_PROTOCOL, &protocol, 1);
	attr(IPSET_ATTR_SETNAME, name, strlen(name) + 1);
	dump(fd, LARGE, 0);
}

static void addresses(int fd)
{
	struct ifinfomsg link = { 0 };
	struct ifaddrmsg address = { 0 };
	begin(RTM_GETLINK, NLM_F_DUMP, &link, sizeof(link));
	dump(fd, LARGE, 0);
	begin(RTM_GETADDR, NLM_F_DUMP, &address, sizeof(address));
	dump(fd, LARGE, 0);
}

static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv)
{
	int genl = open_netlink(NETLINK_GENERIC), genl_small = open_netlink(NETLINK_GENERIC);
	int nf = open_netlink(NETLINK_NETFILTER), rt = open_netlink(NETLINK_ROUTE);
	long long t[4] = { 0 };
	long entries = 0;
	lookup(genl);
	for (int pass = 0; pass < 2; pass++) {
		messages = 0;
		t[0] = now();
		ipvs(genl, genl_small);
		t[1] = now();
		entries = messages;
		for (int i = 1; i < argc; i++)
			set(nf, argv[i]);
		t[2] = now();
		addresses(rt);
		t[3] = now();
	}
	printf("ipvs %lld\nsets %lld\naddresses %lld\nentries %ld\n", t[1] - t[0], t[2] - t[1], t[3] - t[2], entries);
	return 0;
}
