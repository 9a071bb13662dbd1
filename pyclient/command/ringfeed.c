/* The command `ringfeed` of a Python environment: becomes the program of that name in the package
 * ringfeed.
 *
 * The programs and their libraries find each other by where they lie in the package, and an
 * environment's bin is not there. This looks for the package from where it lies itself:
 *
 *   bin/ringfeed                                            this
 *   lib/python3.11/site-packages/ringfeed/bin/ringfeed      of a virtual environment, or of `pip install --user`
 *   lib/python3/dist-packages/ringfeed/bin/ringfeed         of Debian's own Python
 *   ringfeed/bin/ringfeed                                   of `pip install --target`
 *
 * Several Pythons may share a bin, as in ~/.local. The package of this command's version is taken;
 * two of one version hold the same program. Exit status 1 if there is none, else that of the
 * program: it is the same process. */
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char kProgram[] = "/ringfeed/bin/ringfeed";
/* One for what `pip` calls a library directory, one for --target. */
static const char* const kPlaces[] = {"/lib*/python3*/*-packages", ""};

/* prefix as a pattern that matches itself, then the place and the program. False if it does not
 * fit. */
static int pattern_of(const char* prefix, const char* place, char* pattern, size_t room) {
  size_t length = 0;
  for (; *prefix != '\0'; ++prefix) {
    if (length + 2 >= room) return 0;
    if (strchr("*?[]\\", *prefix) != NULL) pattern[length++] = '\\';
    pattern[length++] = *prefix;
  }
  const int added = snprintf(pattern + length, room - length, "%s%s", place, kProgram);
  return added > 0 && (size_t)added < room - length;
}

/* Whether the package of this program is of this command's version: what pip notes beside a package
 * names it. */
static int of_this_version(const char* program) {
  char note[PATH_MAX];
  const int length = snprintf(note, sizeof note, "%.*s/ringfeed-" RINGFEED_VERSION ".dist-info",
                              (int)(strlen(program) - strlen(kProgram)), program);
  return length > 0 && (size_t)length < sizeof note && access(note, F_OK) == 0;
}

int main(int argc, char** argv) {
  char prefix[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", prefix, sizeof prefix - 1);
  if (argc < 1 || length <= 0) {
    fprintf(stderr, "ringfeed: /proc/self/exe cannot be read (%s): is /proc mounted?\n",
            strerror(errno));
    return 1;
  }
  prefix[length] = '\0';
  /* Off with the name, then with bin. */
  for (int i = 0; i < 2; ++i) {
    char* const slash = strrchr(prefix, '/');
    if (slash != NULL) *slash = '\0';
  }
  char program[PATH_MAX] = "";
  int same = 0;
  for (size_t i = 0; i < sizeof kPlaces / sizeof *kPlaces && !same; ++i) {
    char pattern[2 * PATH_MAX];
    glob_t found;
    if (!pattern_of(prefix, kPlaces[i], pattern, sizeof pattern) ||
        glob(pattern, 0, NULL, &found) != 0)
      continue;
    for (size_t k = 0; k < found.gl_pathc && !same; ++k) {
      if (strlen(found.gl_pathv[k]) >= sizeof program || access(found.gl_pathv[k], X_OK) != 0)
        continue;
      same = of_this_version(found.gl_pathv[k]);
      if (same || *program == '\0') strcpy(program, found.gl_pathv[k]);
    }
    globfree(&found);
  }
  if (*program != '\0') {
    /* Of stages in Python: the one of this environment, which has what the user installed. */
    char python[PATH_MAX + 16];
    snprintf(python, sizeof python, "%s/bin/python3", prefix);
    if (access(python, X_OK) == 0) setenv("RINGFEED_PYTHON", python, 0);
    argv[0] = program;
    execv(program, argv);
    fprintf(stderr, "ringfeed: %s cannot be started: %s\n", program, strerror(errno));
    return 1;
  }
  fprintf(stderr,
          "ringfeed: the package ringfeed is neither below %s/lib/python3* nor in %s: reinstall "
          "it, or run python -m ringfeed\n",
          prefix, prefix);
  return 1;
}
