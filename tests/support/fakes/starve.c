/* Takes from a program what it asks the system for, one call at a time: loaded by LD_PRELOAD.
 *
 * Works in the process whose name is in RF_STARVE_PROGRAM, and in none that it forks. RF_STARVE
 * names a file of a page, mapped by the test too:
 *   offset  size  field
 *        0     4  kind   of the calls that fail (the list below, from 1); 0: none
 *        4     4  skip   so many of them go through before
 *        8     4  fail   so many fail then
 *       12     4  error  with this errno
 *       16     4  failed how many have failed
 *       64     8  counts of all calls, by kind
 * Calls of the hung kinds do not fail: those that `skip` lets not through wait as long as the page
 * names their kind.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum Kind {
  kMmap = 1,
  kOpen,
  kEventfd,
  kThread,
  kWrite,
  kMalloc,
  kEpoll,
  kSocketpair,
  kPipe,
  kSpawn,
  kAccept,
  kMemfd,
  kHungPwrite,
  kHungSpawn,
  kHungPread,
  kKinds
};

struct Page {
  _Atomic uint32_t kind;
  _Atomic int32_t skip;
  _Atomic int32_t fail;
  _Atomic int32_t error;
  _Atomic uint32_t failed;
  uint8_t unused[44];
  _Atomic uint64_t counts[kKinds];
};

static struct Page* page;
static pid_t self;

extern void* __libc_malloc(size_t bytes);

__attribute__((constructor)) static void begin(void) {
  const char* program = getenv("RF_STARVE_PROGRAM");
  const char* path = getenv("RF_STARVE");
  if (program == NULL || path == NULL || strcmp(program, program_invocation_short_name) != 0)
    return;
  const int fd =
      (int)((long (*)(const char*, int))dlsym(RTLD_NEXT, "open"))(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* (*const map)(void*, size_t, int, int, int, off_t) =
      (void* (*)(void*, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
  void* const mapped = map(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped == MAP_FAILED) return;
  self = getpid();
  page = mapped;
}

/* Is this call to fail? Sets errno then. */
static int starved(enum Kind kind) {
  if (page == NULL || getpid() != self) return 0;
  atomic_fetch_add(&page->counts[kind], 1);
  if (atomic_load(&page->kind) != (uint32_t)kind) return 0;
  if (atomic_fetch_sub(&page->skip, 1) > 0) return 0;
  if (atomic_fetch_sub(&page->fail, 1) <= 0) return 0;
  atomic_fetch_add(&page->failed, 1);
  errno = atomic_load(&page->error);
  return 1;
}

/* As on a file system that does not answer; memory always does. fd -1: a program. */
static void hang(enum Kind kind, int fd) {
  struct stat info;
  if (page == NULL || getpid() != self) return;
  if (fd >= 0 && (fstat(fd, &info) != 0 || info.st_nlink == 0)) return;
  atomic_fetch_add(&page->counts[kind], 1);
  for (; atomic_load(&page->kind) == (uint32_t)kind; usleep(1000)) {
    if (atomic_fetch_sub(&page->skip, 1) > 0) return;
    atomic_store(&page->failed, 1);
  }
}

// The system's own function of that name.
#define NEXT(name)               \
  static __typeof__(&name) next; \
  if (next == NULL) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

void* malloc(size_t bytes) { return starved(kMalloc) ? NULL : __libc_malloc(bytes); }

void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  NEXT(mmap);
  return starved(kMmap) ? MAP_FAILED : next(at, bytes, protection, flags, fd, offset);
}

static mode_t mode_of(int flags, va_list rest) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
}
int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  NEXT(open);
  return starved(kOpen) ? -1 : next(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  NEXT(open64);
  return starved(kOpen) ? -1 : next(path, flags, mode);
}
int eventfd(unsigned count, int flags) {
  NEXT(eventfd);
  return starved(kEventfd) ? -1 : next(count, flags);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) {
  NEXT(pthread_create);
  return starved(kThread) ? errno : next(thread, attributes, run, argument);
}
/* Files alone are on disks that may be full. */
static int full(int fd) {
  struct stat info;
  return page != NULL && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && starved(kWrite);
}
ssize_t write(int fd, const void* bytes, size_t count) {
  NEXT(write);
  return full(fd) ? -1 : next(fd, bytes, count);
}
ssize_t pwrite(int fd, const void* bytes, size_t count, off_t offset) {
  NEXT(pwrite);
  hang(kHungPwrite, fd);
  return full(fd) ? -1 : next(fd, bytes, count, offset);
}
ssize_t pwrite64(int fd, const void* bytes, size_t count, off64_t offset) {
  NEXT(pwrite64);
  hang(kHungPwrite, fd);
  return full(fd) ? -1 : next(fd, bytes, count, offset);
}
ssize_t pread(int fd, void* bytes, size_t count, off_t offset) {
  NEXT(pread);
  hang(kHungPread, fd);
  return next(fd, bytes, count, offset);
}
ssize_t pread64(int fd, void* bytes, size_t count, off64_t offset) {
  NEXT(pread64);
  hang(kHungPread, fd);
  return next(fd, bytes, count, offset);
}
int epoll_ctl(int epoll, int what, int fd, struct epoll_event* event) {
  NEXT(epoll_ctl);
  /* Taking a descriptor away needs nothing. */
  return what == EPOLL_CTL_ADD && starved(kEpoll) ? -1 : next(epoll, what, fd, event);
}
int socketpair(int domain, int type, int protocol, int fds[2]) {
  NEXT(socketpair);
  return starved(kSocketpair) ? -1 : next(domain, type, protocol, fds);
}
int pipe2(int fds[2], int flags) {
  NEXT(pipe2);
  return starved(kPipe) ? -1 : next(fds, flags);
}
int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const arguments[],
                char* const environment[]) {
  NEXT(posix_spawn);
  hang(kHungSpawn, -1);
  return starved(kSpawn) ? errno : next(pid, path, actions, attributes, arguments, environment);
}
int accept4(int fd, struct sockaddr* address, socklen_t* length, int flags) {
  NEXT(accept4);
  return starved(kAccept) ? -1 : next(fd, address, length, flags);
}
int memfd_create(const char* name, unsigned flags) {
  NEXT(memfd_create);
  return starved(kMemfd) ? -1 : next(name, flags);
}
