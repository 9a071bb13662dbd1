// Files: small ones are read whole (settings, records, what the kernel says about a process); data
// files are opened for reading.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"

namespace ringfeed::shm {

// For a program that was started with a standard stream closed. Otherwise the next file that it
// opens, for example a segment, would get that number, and messages would be written into it.
void open_standard_streams() noexcept;

// Anything larger is not a small file; it may be a device without an end.
inline constexpr std::size_t kFileBytesMax = std::size_t{256} << 20;

// The file's content. kNotFound or kIo with the system's reason; also if it can be opened but not
// read, like a /proc file of a process that ends in between. kInvalidArgument if it has more than
// `bytes_max`.
[[nodiscard]] Result<std::string> read_file(const std::string& path,
                                            std::size_t bytes_max = kFileBytesMax);

// The same for a file that is already open, up to its end; messages call it `name`.
[[nodiscard]] Result<std::string> read_to_end(int fd, const std::string& name,
                                              std::size_t bytes_max = kFileBytesMax);

// The names in a directory, without "." and "..", in no particular order. kNotFound or kIo with the
// system's reason. It exists because the standard's iterators end the process if memory runs out.
[[nodiscard]] Result<std::vector<std::string>> names_in(const std::string& directory);

// Opens data for reading, and only a regular file. A FIFO or a device in its place is refused at
// once; a plain open() would wait for a writer for ever. kNotFound: nothing is there; kNoMemory:
// there is no descriptor or memory now (is_starvation); kIo: the system's reason, or what is there
// instead. The text is the reason alone, without the path.
[[nodiscard]] Result<Fd> open_regular(const std::string& path);

// The content of a file that must be a regular one.
[[nodiscard]] Result<std::string> read_regular_file(const std::string& path);

}  // namespace ringfeed::shm
