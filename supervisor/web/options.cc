#include "supervisor/web/options.h"

namespace ringfeed::web {

void add_options(CLI::App& app, Options& options) {
  app.add_option("--listen", options.listen, "address and port; port 0: any that is free")
      ->type_name("ADDRESS:PORT")
      ->capture_default_str();
  app.add_option("--socket-dir", options.directory,
                 "directory of the control sockets; default: $RINGFEED_SOCKET_DIR, else "
                 "$XDG_RUNTIME_DIR/ringfeed, then /run/ringfeed")
      ->type_name("DIR");
  app.add_option("--token-file", options.token_file,
                 "its first line is the token that everybody has to send (Authorization: Bearer)")
      ->type_name("FILE");
  app.add_option("--allow-host", options.hosts,
                 "a name by which browsers may call it, besides addresses and localhost; may be "
                 "given several times")
      ->type_name("NAME")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  // Not shown: feed/web_process.cc says it.
  app.add_option("--ends-with", options.parent)->group("");
}

}  // namespace ringfeed::web
