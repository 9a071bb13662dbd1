// Requests that change something: what their clients are told never happens does not happen.
//
// A client that gives up shuts down its sending side and then looks whether the request still lies
// unread in the socket. If so it is withdrawn: a server takes a request out of the socket first,
// then looks whether its client has given up, and passes over what is withdrawn. Else the server
// has it, and it is under way.
#pragma once

namespace ringfeed {
class Request;
}

namespace ringfeed::control {

// Is somebody harmed who believes that it was not done?
[[nodiscard]] bool changes_something(const Request& request);
// For the server, of a request that is out of the socket.
[[nodiscard]] bool is_given_up(int socket);
// For the client. True: nobody has the request, and nobody will do it.
[[nodiscard]] bool withdraw(int socket);

}  // namespace ringfeed::control
