/*
 * The bar for the `ipvs` crate: a minimal program that adds N virtual servers with M real servers each, in batches of 128
 * messages with an acknowledgement on the last, and nothing else. It sends the same bytes as the crate; `--print` writes them to
 * standard output instead (family id 0, sequence numbers from 1), so that this can be checked.
 *
 * Makes two passes, each in a network namespace of its own, and prints the nanoseconds of the second, from before socket() to the
 * last acknowledgement: under an emulator the first pass also pays for the translation of the program.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/genetlink.h>
#include <linux/ip_vs.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BATCH 128

static char out[BATCH * 256];
static size_t used, last;
static int pending;
static uint32_t sequence;
static uint16_t family;
static int fd = -1;
static int print_only;

static void fail(const char *what)
{
	perror(what);
	exit(1);
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

static void u16(uint16_t type, uint16_t value) { attr(type, &value, 2); }
static void u32(uint16_t type, uint32_t value) { attr(type, &value, 4); }

static size_t nest(uint16_t type)
{
	size_t at = used;
	attr(type | NLA_F_NESTED, "", 0);
	return at;
}

static void nest_end(size_t at) { ((struct nlattr *)(out + at))->nla_len = used - at; }

static void flush(void)
{
	static char in[65536];
	if (!pending)
		return;
	((struct nlmsghdr *)(out + last))->nlmsg_flags |= NLM_F_ACK;
	if (print_only) {
		fwrite(out, 1, used, stdout);
	} else {
		if (send(fd, out, used, 0) != (ssize_t)used)
			fail("send");
		for (int done = 0; !done;) {
			ssize_t n = recv(fd, in, sizeof(in), 0);
			if (n < 0)
				fail("recv");
			for (struct nlmsghdr *h = (struct nlmsghdr *)in; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
				struct nlmsgerr *e = NLMSG_DATA(h);
				if (h->nlmsg_type != NLMSG_ERROR)
					continue;
				if (e->error) {
					errno = -e->error;
					fail("kernel");
				}
				done |= h->nlmsg_seq == sequence;
			}
		}
	}
	used = 0;
	pending = 0;
}

static size_t begin(uint16_t type, uint8_t command, uint8_t version)
{
	struct nlmsghdr *h = (struct nlmsghdr *)(out + used);
	struct genlmsghdr *g = (struct genlmsghdr *)(h + 1);
	last = used;
	memset(h, 0, sizeof(*h) + sizeof(*g));
	h->nlmsg_type = type;
	h->nlmsg_flags = NLM_F_REQUEST;
	h->nlmsg_seq = ++sequence;
	g->cmd = command;
	g->version = version;
	used += NLMSG_HDRLEN + GENL_HDRLEN;
	return last;
}

static void end(size_t at)
{
	((struct nlmsghdr *)(out + at))->nlmsg_len = used - at;
	if (++pending == BATCH)
		flush();
}

static void key(uint32_t vip)
{
	uint32_t addr[4] = { vip };
	u16(IPVS_SVC_ATTR_AF, AF_INET);
	u16(IPVS_SVC_ATTR_PROTOCOL, IPPROTO_TCP);
	attr(IPVS_SVC_ATTR_ADDR, addr, 16);
	u16(IPVS_SVC_ATTR_PORT, htons(80));
}

static void lookup(void)
{
	static char in[65536];
	size_t at = begin(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 2);
	attr(CTRL_ATTR_FAMILY_NAME, IPVS_GENL_NAME, sizeof(IPVS_GENL_NAME));
	((struct nlmsghdr *)(out + at))->nlmsg_len = used - at;
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
	used = 0;
	sequence = 0;
}

static void fresh_namespace(void)
{
	struct ifreq lo = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	if (unshare(CLONE_NEWNET))
		fail("unshare");
	int inet = socket(AF_INET, SOCK_DGRAM, 0);
	if (inet < 0 || ioctl(inet, SIOCSIFFLAGS, &lo))
		fail("lo up");
	close(inet);
}

static void connect_ipvs(void)
{
	struct sockaddr_nl sa = { .nl_family = AF_NETLINK };
	int on = 1, room = 1 << 20;
	fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC);
	if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa)))
		fail("socket");
	setsockopt(fd, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
	lookup();
}

static void program(uint32_t services, uint32_t dests)
{
	for (uint32_t s = 0; s < services; s++) {
		uint32_t vip = htonl(0x0a600000 + s + 1), flags[2] = { 0, 0xffffffff };
		size_t m = begin(family, IPVS_CMD_NEW_SERVICE, IPVS_GENL_VERSION), n = nest(IPVS_CMD_ATTR_SERVICE);
		key(vip);
		attr(IPVS_SVC_ATTR_SCHED_NAME, "rr", 3);
		attr(IPVS_SVC_ATTR_FLAGS, flags, 8);
		u32(IPVS_SVC_ATTR_TIMEOUT, 0);
		u32(IPVS_SVC_ATTR_NETMASK, 0xffffffff);
		nest_end(n);
		end(m);
		for (uint32_t d = 0; d < dests; d++) {
			uint32_t addr[4] = { htonl(0x7f100000 + s * dests + d + 1) };
			m = begin(family, IPVS_CMD_NEW_DEST, IPVS_GENL_VERSION);
			n = nest(IPVS_CMD_ATTR_SERVICE);
			key(vip);
			nest_end(n);
			n = nest(IPVS_CMD_ATTR_DEST);
			u16(IPVS_DEST_ATTR_ADDR_FAMILY, AF_INET);
			attr(IPVS_DEST_ATTR_ADDR, addr, 16);
			u16(IPVS_DEST_ATTR_PORT, htons(8080));
			u32(IPVS_DEST_ATTR_FWD_METHOD, IP_VS_CONN_F_MASQ);
			u32(IPVS_DEST_ATTR_WEIGHT, 1);
			u32(IPVS_DEST_ATTR_U_THRESH, 0);
			u32(IPVS_DEST_ATTR_L_THRESH, 0);
			nest_end(n);
			end(m);
		}
	}
	flush();
}

int main(int argc, char **argv)
{
	struct timespec a, b;
	if (argc < 3) {
		fprintf(stderr, "usage: %s VIRTUAL_SERVERS REAL_SERVERS [--print]\n", argv[0]);
		return 2;
	}
	uint32_t services = atoi(argv[1]), dests = atoi(argv[2]);
	if (argc > 3) {
		print_only = 1;
		program(services, dests);
		return 0;
	}
	for (int pass = 0; pass < 2; pass++) {
		fresh_namespace();
		clock_gettime(CLOCK_MONOTONIC, &a);
		connect_ipvs();
		program(services, dests);
		clock_gettime(CLOCK_MONOTONIC, &b);
		if (pass == 0)
			close(fd);
	}
	printf("%lld\n", (b.tv_sec - a.tv_sec) * 1000000000LL + (b.tv_nsec - a.tv_nsec));
	return 0;
}
