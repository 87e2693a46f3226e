#!/bin/bash
# Makes connections of every kind that /proc/net/ip_vs_conn shows, and prints the files. Run as root on the kernel in question:
#   unshare -n bash capture.sh
ip link set lo up; modprobe ip_vs; modprobe dummy 2>/dev/null
for a in 10.0.0.1 10.0.0.2 10.0.0.3; do ip addr add $a/32 dev lo; done
ip -6 addr add fd00::1/128 dev lo nodad; ip -6 addr add fd00::2/128 dev lo nodad
modprobe ip_vs_lblc; modprobe ip_vs_lblcr; modprobe ip_vs_pe_sip 2>/dev/null
ipvsadm -R <<X
-A -t 10.0.0.1:80 -s rr
-a -t 10.0.0.1:80 -r 10.0.0.2:8080 -m -w 3
-A -t 10.0.0.1:81 -s rr -p 300 -M 255.255.255.0
-a -t 10.0.0.1:81 -r 10.0.0.2:8080 -m
-A -u 10.0.0.1:53 -s rr
-a -u 10.0.0.1:53 -r 10.0.0.2:5353 -m
-A -t [fd00::1]:80 -s rr -p 60
-a -t [fd00::1]:80 -r [fd00::2]:8080 -m
-A -f 7 -s rr -p 300
-a -f 7 -r 10.0.0.2:8080 -m
-A -f 9 -6 -s rr -p 300
-a -f 9 -6 -r [fd00::2]:8080 -m
-A -u 10.0.0.1:5060 -s rr -p 60 --pe sip -o
-a -u 10.0.0.1:5060 -r 10.0.0.2:5060 -m
X
iptables-legacy -t mangle -A OUTPUT -d 10.0.0.3 -p tcp --dport 90 -j MARK --set-mark 7
ip6tables-legacy -t mangle -A OUTPUT -d fd00::1 -p tcp --dport 90 -j MARK --set-mark 9
python3 - <<'X'
import socket,threading,time
def srv(fam,typ,addr):
    s=socket.socket(fam,typ); s.setsockopt(1,2,1); s.bind(addr)
    if typ==socket.SOCK_STREAM:
        s.listen(20)
        def run():
            while True:
                c,_=s.accept(); c.send(b"hi"); keep.append(c)
    else:
        def run():
            while True:
                d,a=s.recvfrom(2000); s.sendto(d,a)
    threading.Thread(target=run,daemon=True).start()
keep=[]
srv(2,1,("10.0.0.2",8080)); srv(2,2,("10.0.0.2",5353)); srv(2,2,("10.0.0.2",5060)); srv(10,1,("fd00::2",8080))
def con(fam,a):
    s=socket.socket(fam,1); s.settimeout(3)
    try:
        s.connect(a); print(a,s.recv(10))
    except Exception as e: print(a,e)
    keep.append(s)
con(2,("10.0.0.1",80)); con(2,("10.0.0.1",81)); con(10,("fd00::1",80)); con(2,("10.0.0.3",90)); con(10,("fd00::1",90))
u=socket.socket(2,2); u.settimeout(2); u.sendto(b"x",("10.0.0.1",53))
try: print(u.recvfrom(10))
except Exception as e: print(e)
m=b"INVITE sip:b@x SIP/2.0\r\nVia: SIP/2.0/UDP h\r\nCall-ID: 1234abc@10.0.0.9\r\n\r\n"
u.sendto(m,("10.0.0.1",5060))
try: print(u.recvfrom(2000))
except Exception as e: print(e)
c=socket.socket(2,1); c.settimeout(3); c.connect(("10.0.0.1",80)); c.close()
time.sleep(0.3)
import subprocess
for f in ["ip_vs","ip_vs_conn","ip_vs_conn_sync","ip_vs_stats","ip_vs_stats_percpu"]:
    print("=====",f); print(open("/proc/thread-self/net/"+f).read(),end="",flush=True)
print("=====",flush=True)
subprocess.run("ipvsadm -Lnc --persistent-conn; ipvsadm -Sn; for f in /proc/sys/net/ipv4/vs/*; do echo \"$(stat -c %a $f) $(basename $f) = $(cat $f)\"; done; ls /proc/net | grep ip_vs",shell=True)
X
