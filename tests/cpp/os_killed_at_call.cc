#include "os_killed_at_call.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

namespace {

std::atomic<long> g_calls_made = 0;
std::atomic<long> g_killed_after = -1;

void CountCall() {
  if (g_calls_made++ == g_killed_after) static_cast<void>(::kill(::getpid(), SIGKILL));
}

template <class Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

// These take the place of the C library's in this program.
extern "C" {
ssize_t pwritev(int fd, const iovec* pieces, int count, off_t offset) {
  CountCall();
  return Real<ssize_t(int, const iovec*, int, off_t)>("pwritev")(fd, pieces, count, offset);
}
ssize_t pwrite64(int fd, const void* bytes, size_t count, off64_t offset) {
  CountCall();
  return Real<ssize_t(int, const void*, size_t, off64_t)>("pwrite64")(fd, bytes, count, offset);
}
int fsync(int fd) {
  CountCall();
  return Real<int(int)>("fsync")(fd);
}
int fdatasync(int fd) {
  CountCall();
  return Real<int(int)>("fdatasync")(fd);
}
int ftruncate64(int fd, off64_t size) noexcept {
  CountCall();
  return Real<int(int, off64_t)>("ftruncate64")(fd, size);
}
int rename(const char* from, const char* to) noexcept {
  CountCall();
  return Real<int(const char*, const char*)>("rename")(from, to);
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  CountCall();
  return Real<int(int, const char*, int, const char*)>("renameat")(from_folder, from, to_folder, to);
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  CountCall();
  return Real<int(int, const char*, int)>("unlinkat")(folder, path, flags);
}
int unlink(const char* path) noexcept {
  CountCall();
  return Real<int(const char*)>("unlink")(path);
}
}

namespace everlong::os {

void KillAfterCalls(long calls) {
  g_calls_made = 0;
  g_killed_after = calls;
}
long CallsMade() { return g_calls_made; }

Ended RunInChild(const std::function<void(const Tell& tell)>& work) {
  int news[2];
  EXPECT_EQ(::pipe(news), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    work([&news](int64_t number) {
      const auto byte = static_cast<unsigned char>(number);
      if (::write(news[1], &byte, 1) != 1) ::_exit(7);
    });
    ::_exit(3);
  }
  ::close(news[1]);
  Ended ended;
  for (unsigned char byte = 0; ::read(news[0], &byte, 1) == 1;) ended.told.insert(byte);
  ::close(news[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  ended.died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  EXPECT_TRUE(ended.died || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
  return ended;
}

}  // namespace everlong::os
