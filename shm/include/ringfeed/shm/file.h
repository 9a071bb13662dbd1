// Files: small ones as a whole (settings, records, what the kernel says of a process), and data
// that is opened to be read.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"

namespace ringfeed::shm {

// What is larger is no small file: a device without an end, say.
inline constexpr std::size_t kFileBytesMax = std::size_t{256} << 20;

// The file's content. kNotFound or kIo with the system's reason: also where it can be opened and
// then not be read, as a file of /proc of a process that ends in between. kInvalidArgument if it
// has more than `bytes_max`.
[[nodiscard]] Result<std::string> read_file(const std::string& path,
                                            std::size_t bytes_max = kFileBytesMax);

// The same of what is open already, up to its end; `name` is what messages call it.
[[nodiscard]] Result<std::string> read_to_end(int fd, const std::string& name,
                                              std::size_t bytes_max = kFileBytesMax);

// The names of what is in a directory, without "." and "..", in no order. kNotFound or kIo with the
// system's reason. The standard's iterators end the process where memory runs out.
[[nodiscard]] Result<std::vector<std::string>> names_in(const std::string& directory);

// Opens data for reading, and nothing but a regular file: a FIFO or a device that somebody has put
// in its place is refused at once, where a plain open() would wait for a writer for ever.
// kNotFound: nothing is there; kNoMemory: no descriptor or memory is to be had now (is_starvation);
// kIo: the system's reason, or what is there instead. The text is the reason alone, without the
// path.
[[nodiscard]] Result<Fd> open_regular(const std::string& path);

// The content of a file that must be a regular one.
[[nodiscard]] Result<std::string> read_regular_file(const std::string& path);

}  // namespace ringfeed::shm
