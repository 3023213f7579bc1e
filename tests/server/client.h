#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace tessera::testing {

/// A socket to a server on this machine, with patience of a minute.
class Client {
 public:
  explicit Client(std::uint16_t port, int receive_buffer = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0)
      setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0)
        << std::strerror(errno);
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(std::string_view text) {
    ASSERT_EQ(::send(socket_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  /// Sends nothing more, and may still read.
  void end_sending() { shutdown(socket_, SHUT_WR); }
  /// Closes with a reset instead of the usual goodbye.
  void reset() {
    const linger hard{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    close();
  }

  /// Reads until `text` is in what came, or the server closes. Returns all that came since the last call.
  std::string read_until(std::string_view text) {
    while (received_.find(text) == received_.npos && receive()) {
    }
    const std::size_t found = received_.find(text);
    const std::size_t end = found == received_.npos ? received_.size() : found + text.size();
    std::string result = received_.substr(0, end);
    received_.erase(0, end);
    return result;
  }
  /// All until the server closes.
  std::string read_all() {
    while (receive()) {
    }
    return std::exchange(received_, {});
  }
  /// An answer with Content-Length: its head and its body.
  std::string read_answer() {
    std::string answer = read_until("\r\n\r\n");
    const std::size_t field = answer.find("Content-Length: ");
    if (field == answer.npos) return answer;
    const std::size_t length = std::stoul(answer.substr(field + 16));
    while (received_.size() < length && receive()) {
    }
    answer += received_.substr(0, length);
    received_.erase(0, length);
    return answer;
  }

 private:
  bool receive() {
    pollfd ready{socket_, POLLIN, 0};
    if (poll(&ready, 1, 60'000) != 1) {
      ADD_FAILURE() << "the server said nothing for a minute after: " << received_;
      return false;
    }
    char buffer[16384];
    const ssize_t n = recv(socket_, buffer, sizeof(buffer), 0);
    if (n > 0) received_.append(buffer, static_cast<std::size_t>(n));
    return n > 0;
  }

  int socket_;
  std::string received_;
};

inline std::string post(std::string_view path, std::string_view body, std::string_view headers = "") {
  std::string text = "POST ";
  text += path;
  text += " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  text += headers;
  return text + "\r\n" + std::string(body);
}

inline std::string get(std::string_view path, std::string_view headers = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers) + "\r\n";
}

}  // namespace tessera::testing
