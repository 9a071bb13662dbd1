/* Makes every process stand still at random around its system calls: loaded by LD_PRELOAD.
 *
 * RF_DELAYS is EACH:MOST, as in 150:80: one of 150 calls takes up to 80 ms longer, before it or
 * after it. Reads, writes and closes, which are many, have a sixth of that. It shows tests, and
 * products, that count on what somebody else cannot have done yet, or must have done by now:
 * `scripts/test delays`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kMany = 6 };

static unsigned each, most_ms;
static __thread uint64_t dice;

/* libc's syscall(): that of this library is one of those that take longer. */
static long call(long number, long a, long b, long c, long d, long e, long f) {
  static long (*next)(long, ...);
  if (next == NULL) next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  return next(number, a, b, c, d, e, f);
}

__attribute__((constructor)) static void begin(void) {
  const char* words = getenv("RF_DELAYS");
  if (words == NULL) return;
  char more;
  if (sscanf(words, "%u:%u%c", &each, &most_ms, &more) == 2 && each != 0 && most_ms != 0) return;
  /* A run without delays would prove nothing. */
  dprintf(STDERR_FILENO, "RF_DELAYS is '%s': give two numbers from 1 on, as in 150:80\n", words);
  _exit(2);
}

/* Of calls of which there are so many more than of others. */
static void delay(unsigned many) {
  if (each == 0) return;
  if (dice == 0) {
    struct timespec now;
    call(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&now, 0, 0, 0, 0);
    dice = ((uint64_t)now.tv_nsec * 2654435761U) ^ (uintptr_t)&dice ^
           ((uint64_t)call(SYS_gettid, 0, 0, 0, 0, 0, 0) << 32) ^ 1;
  }
  dice ^= dice << 13; /* xorshift64 */
  dice ^= dice >> 7;
  dice ^= dice << 17;
  if (dice == 0 || (dice >> 20) % ((uint64_t)each * many) != 0) return;
  const uint64_t us = (dice >> 8) % (1000ULL * most_ms);
  const struct timespec time = {(time_t)(us / 1000000), (long)(us % 1000000 * 1000)};
  call(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, (long)&time, 0, 0, 0);
}

#define DELAYED(type, name, parameters, arguments, many)                 \
  type name parameters {                                                 \
    static __typeof__(name)* next;                                       \
    if (next == NULL) next = (__typeof__(name)*)dlsym(RTLD_NEXT, #name); \
    const int before = errno;                                            \
    delay(many);                                                         \
    errno = before;                                                      \
    const type result = next arguments;                                  \
    const int error = errno;                                             \
    delay(many);                                                         \
    errno = error;                                                       \
    return result;                                                       \
  }

DELAYED(int, rename, (const char* from, const char* to), (from, to), 1)
DELAYED(int, renameat, (int a, const char* from, int b, const char* to), (a, from, b, to), 1)
DELAYED(int, unlink, (const char* path), (path), 1)
DELAYED(int, unlinkat, (int at, const char* path, int flags), (at, path, flags), 1)
DELAYED(int, symlink, (const char* to, const char* path), (to, path), 1)
DELAYED(int, link, (const char* to, const char* path), (to, path), 1)
DELAYED(int, mkdir, (const char* path, mode_t mode), (path, mode), 1)
DELAYED(int, rmdir, (const char* path), (path), 1)
DELAYED(int, ftruncate, (int fd, off_t bytes), (fd, bytes), 1)
DELAYED(int, bind, (int fd, const struct sockaddr* to, socklen_t bytes), (fd, to, bytes), 1)
DELAYED(int, listen, (int fd, int backlog), (fd, backlog), 1)
DELAYED(int, connect, (int fd, const struct sockaddr* to, socklen_t bytes), (fd, to, bytes), 1)
DELAYED(int, accept4, (int fd, struct sockaddr* from, socklen_t* bytes, int flags),
        (fd, from, bytes, flags), 1)
DELAYED(int, shutdown, (int fd, int how), (fd, how), 1)
DELAYED(ssize_t, send, (int fd, const void* data, size_t bytes, int flags),
        (fd, data, bytes, flags), 1)
DELAYED(ssize_t, sendmsg, (int fd, const struct msghdr* message, int flags), (fd, message, flags),
        1)
DELAYED(ssize_t, recv, (int fd, void* data, size_t bytes, int flags), (fd, data, bytes, flags), 1)
DELAYED(ssize_t, recvmsg, (int fd, struct msghdr* message, int flags), (fd, message, flags), 1)
DELAYED(ssize_t, read, (int fd, void* data, size_t bytes), (fd, data, bytes), kMany)
DELAYED(ssize_t, write, (int fd, const void* data, size_t bytes), (fd, data, bytes), kMany)
DELAYED(ssize_t, pwrite, (int fd, const void* data, size_t bytes, off_t at), (fd, data, bytes, at),
        kMany)
DELAYED(int, close, (int fd), (fd), kMany)
DELAYED(int, kill, (pid_t pid, int number), (pid, number), 1)
DELAYED(pid_t, fork, (void), (), 1)
DELAYED(pid_t, waitpid, (pid_t pid, int* status, int options), (pid, status, options), 1)
DELAYED(int, execve, (const char* path, char* const words[], char* const environment[]),
        (path, words, environment), 1)

/* futex and pidfd_send_signal come this way. */
long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long words[6];
  for (int i = 0; i < 6; ++i) words[i] = va_arg(list, long);
  va_end(list);
  const unsigned many = number == SYS_futex ? kMany : 1;
  const int before = errno;
  delay(many);
  errno = before;
  const long result = call(number, words[0], words[1], words[2], words[3], words[4], words[5]);
  const int error = errno;
  delay(many);
  errno = error;
  return result;
}
