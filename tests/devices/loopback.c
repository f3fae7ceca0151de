/* Keeps adbd, which has no authentication, on this machine alone: it listens on 127.0.0.1 and on no vsock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

int bind(int fd, const struct sockaddr *address, socklen_t size) {
  int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "bind");
  if (address->sa_family == AF_INET) {
    struct sockaddr_in own = *(const struct sockaddr_in *)address;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return real(fd, (const struct sockaddr *)&own, size);
  }
  if (address->sa_family == AF_INET6) {
    struct sockaddr_in6 own = *(const struct sockaddr_in6 *)address;
    own.sin6_addr = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}};
    return real(fd, (const struct sockaddr *)&own, size);
  }
  return real(fd, address, size);
}

int socket(int domain, int type, int protocol) {
  int (*real)(int, int, int) = dlsym(RTLD_NEXT, "socket");
  if (domain == AF_VSOCK) {
    errno = EAFNOSUPPORT;
    return -1;
  }
  return real(domain, type, protocol);
}
