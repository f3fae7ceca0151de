/* Shifts the time of day by CLOCK_SHIFT_S seconds, from the moment on when the monotonic clock shows CLOCK_SHIFT_AT. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

typedef int (*gettime)(clockid_t, struct timespec *);

static gettime real(void) {
  static gettime found;
  if (!found) found = (gettime)dlsym(RTLD_NEXT, "clock_gettime");
  return found;
}

static long shift(void) {
  const char *seconds = getenv("CLOCK_SHIFT_S"), *at = getenv("CLOCK_SHIFT_AT");
  struct timespec now;
  if (!seconds || !at || real()(CLOCK_MONOTONIC, &now)) return 0;
  return now.tv_sec >= atol(at) ? atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = real()(clock, now);
  if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
  return result;
}

time_t time(time_t *now) {
  struct timespec shifted;
  clock_gettime(CLOCK_REALTIME, &shifted);
  if (now) *now = shifted.tv_sec;
  return shifted.tv_sec;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec shifted;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &shifted);
  now->tv_sec = shifted.tv_sec;
  now->tv_usec = shifted.tv_nsec / 1000;
  return 0;
}
