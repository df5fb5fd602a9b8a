"""Uses the chat page of a running faststream-serve in headless Chromium, and takes screenshots.

    apt install chromium chromium-driver; pip install selenium
    faststream-serve -m demo=build/demo-int8.bin
    tests/peers/chat_page.py http://127.0.0.1:8080 FOLDER

Exits with 1 and says what is wrong if something is.
"""
import pathlib
import sys
import time

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

address, folder = sys.argv[1], pathlib.Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
options = webdriver.ChromeOptions()
for argument in ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1100,750"]:
    options.add_argument(argument)
options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
wait = WebDriverWait(driver, 20, ignored_exceptions=[StaleElementReferenceException])


def one(selector):
    return driver.find_element(By.CSS_SELECTOR, selector)


def all_of(selector):
    return driver.find_elements(By.CSS_SELECTOR, selector)


def idle(_=None):
    return one("#send").text == "Send"


def say(text):
    one("#input").send_keys(text, Keys.ENTER)
    wait.until(lambda _: all_of("article.user") and all_of("article.user")[-1].text.startswith(text))
    wait.until(idle)


def click(text, last=True):
    found = [node for node in all_of("#talk button") if node.text == text]
    found[-1 if last else 0].click()


def look(name):
    driver.save_screenshot(str(folder / (name + ".png")))


HOSTILE = "\n".join([
    "# Heading <script>window.broken = 1</script>", "<img src=x onerror='window.broken = 1'>",
    "[click](javascript:window.broken=1) [site](https://example.org/a) `<b>` **bold *both***",
    "", "- one", "  - inner", "- two", "", "1. first", "2. second", "", "> quoted", "",
    "| a | b |", "|---|---|", "| 1 | <i>2</i> |", "", "```python", "print('<hello>')", "```",
    "```", "never ended <script>"])
try:
    driver.get(address)
    wait.until(lambda _: one("#model").text)
    one("#toggle").click()
    one("#system").send_keys("Be brief.")
    for name, value in [("temperature", "0"), ("max_tokens", "40")]:
        one("#" + name).send_keys(value)
    one("#toggle").click()
    say("What is 128 plus 345?")
    assert "473" in all_of("article.assistant")[-1].text, all_of("article.assistant")[-1].text
    say("Tell me a story about a fox and a lantern.")
    assert len(all_of("article.assistant")) == 2
    look("light")

    click("Retry")
    wait.until(idle)
    assert len(all_of("article.assistant")) == 2
    click("Edit", last=False)
    box = one("#talk textarea")
    box.clear()
    box.send_keys("What is 2 plus 2?", Keys.ENTER)
    wait.until(lambda _: len(all_of("article")) == 2 and idle())
    assert "4" in all_of("article.assistant")[-1].text

    driver.execute_script("$('max_tokens').value = ''; $('temperature').value = '2'")
    one("#new").click()
    one("#input").send_keys("Tell me a story about a fox and a lantern.", Keys.ENTER)
    wait.until(lambda _: one("#send").text == "Stop")
    one("#send").click()
    wait.until(idle)

    driver.refresh()  # chats are kept, with their system text
    wait.until(lambda _: len(all_of("nav li")) == 2)
    [node for node in all_of("nav li button") if "2 plus 2" in node.text][0].click()
    assert len(all_of("article")) == 2 and one("#system").get_attribute("value") == "Be brief."

    driver.execute_script(
        "open.messages.push({role: 'assistant', content: arguments[0]}); show(open)", HOSTILE)
    time.sleep(0.5)
    shown = all_of("article.assistant .markdown")[-1]
    assert driver.execute_script("return window.broken") is None
    tags = {node.tag_name for node in shown.find_elements(By.CSS_SELECTOR, "*")}
    assert not tags & {"script", "img", "i", "b"}, tags
    assert {"h2", "ul", "ol", "li", "table", "pre", "code", "blockquote", "a", "strong"} <= tags, tags
    both = shown.find_element(By.CSS_SELECTOR, "strong em")
    assert both.text == "both" and "*" not in both.find_element(By.XPATH, "../..").text
    assert [a.get_attribute("href") for a in shown.find_elements(By.TAG_NAME, "a")] == [
        "https://example.org/a"]
    look("markdown")
    one("#theme").click()
    look("dark")
    driver.set_window_size(400, 750)
    time.sleep(0.4)
    look("phone")
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    one("#menu").click()
    time.sleep(0.3)
    look("phone-menu")
    one("#chats button").send_keys(Keys.ESCAPE)

    one("body").send_keys(Keys.TAB)  # by the keyboard alone
    reached = set()
    for _ in range(40):
        reached.add(driver.execute_script("return document.activeElement.id"))
        driver.switch_to.active_element.send_keys(Keys.TAB)
    assert {"input", "send", "model", "toggle", "theme"} <= reached, reached
    bad = [line for line in driver.get_log("browser") if line["level"] == "SEVERE"]
    assert not [line for line in bad if "favicon" not in line["message"]], bad
    print("passed; screenshots in", folder)
finally:
    driver.quit()
